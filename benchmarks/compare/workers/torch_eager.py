"""torch through transformers: eager in fp32 or bf16, weight-only integers by torchao, or compiled with a static cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from benchmarks.compare.workers.protocol import Worker, main, timed

__all__ = ["TorchEager"]


class TorchEager(Worker):
    """config: dtype "fp32" or "bf16"; weights "int8" or "int4" quantizes the linears; compile: torch.compile and a static cache."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        torch.set_num_threads(config["threads"])
        torch.set_grad_enabled(False)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[config["dtype"]]
        self.model = AutoModelForCausalLM.from_pretrained(config["model"], dtype=dtype, attn_implementation="sdpa").eval()
        if "weights" in config:
            _quantize(self.model, config["weights"])
        self.run: Any = self.model
        if config.get("compile"):
            self.run = torch.compile(self.model, dynamic=False)

    def _cache(self, tokens: int) -> Any:
        if not self.config.get("compile"):
            return DynamicCache(config=self.model.config)
        return StaticCache(config=self.model.config, max_cache_len=-(-tokens // 256) * 256)

    def _prompt(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        # Compiled, the prompt runs eagerly but for the shapes that were compiled on purpose (prefill): compiling each length takes minutes.
        run = self.run if self.config.get("compile") == "prefill" else self.model
        out = run(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, cache_position=torch.arange(ids.shape[1]))
        return out.logits[:, -1].argmax(-1)

    def first(self, ids: Sequence[int]) -> int:
        return int(self._prompt(torch.tensor([list(ids)]), self._cache(len(ids) + 8)))

    def _steps(self, prompts: torch.Tensor, steps: int) -> list[float]:
        cache = self._cache(prompts.shape[1] + steps + 8)
        token, at = self._prompt(prompts, cache), prompts.shape[1]

        def step() -> None:
            nonlocal token, at
            out = self.run(
                input_ids=token[:, None], past_key_values=cache, use_cache=True, cache_position=torch.tensor([at]), logits_to_keep=1
            )
            token, at = out.logits[:, -1].argmax(-1), at + 1

        if self.config.get("compile"):
            timed(3, step)
        return timed(steps, step)

    def decode(self, ids: Sequence[int], steps: int) -> list[float]:
        return self._steps(torch.tensor([list(ids)]), steps)

    def batch(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        return self._steps(torch.tensor([list(ids) for ids in prompts]), steps)

    def logits(self, ids: Sequence[int]) -> Any:
        return self.model(input_ids=torch.tensor([list(ids)])).logits[0].float().numpy()

    def facts(self) -> Mapping[str, Any]:
        return {"version": f"torch {torch.__version__}", "cpu": torch.backends.cpu.get_cpu_capability()}


def _quantize(model: Any, weights: str) -> None:
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    quantize_(model, {"int8": Int8WeightOnlyConfig, "int4": Int4WeightOnlyConfig}[weights]())


if __name__ == "__main__":
    main(TorchEager)
