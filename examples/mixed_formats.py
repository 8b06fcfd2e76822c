"""Give layers different formats by name, and read back what each one got.

python examples/mixed_formats.py MODEL [OUT.plan]
"""

import sys

import mixplan
from mixplan.runtime.inspect_plan import inspect_plan


def main() -> None:
    plan = sys.argv[2] if len(sys.argv) > 2 else "mixed.plan"
    report = mixplan.compile(
        sys.argv[1],
        output=plan,
        scheme="W4A16",
        group_size=64,
        overrides=("re:.*down_proj=W8A8", "re:model[.]layers[.]0[.].*=W8A16"),
        force=True,
    )
    print(f"effective bits: requested {report.requested_bits:.3f}, achieved {report.effective_bits:.3f}")
    for layer in inspect_plan(plan)["layers"]:
        print(f"{layer['layer']:40} {layer['scheme']:10} {layer['bits']:.2f} bits  ({layer['rule']})")


if __name__ == "__main__":
    main()
