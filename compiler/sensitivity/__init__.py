"""What a format costs a layer in accuracy, predicted before anything is built.

| method | what it is | when |
|---|---|---|
| fisher | half of the square error in the layer's output, each output times the mean square of its gradient | the default |
| hessian | the relative error of the layer's output: no gradients, so that models larger than memory can be scored | large models |
| kld | the KL divergence of the logits with this one layer changed | slow; to check the others |

fisher and kld are in nats a token; hessian is relative, and says which layer to widen but not what is won.
"""

from __future__ import annotations

from mixplan.compiler.sensitivity.gradients import GradientStatistics, gradient_statistics
from mixplan.compiler.sensitivity.table import METHODS, LossTable, loss_table

__all__ = ["METHODS", "GradientStatistics", "LossTable", "gradient_statistics", "loss_table"]
