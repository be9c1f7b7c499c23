"""python -m benchmarks [name ...]: run these benchmarks, or all."""

import importlib
import pkgutil
import sys

import benchmarks


def main() -> None:
    names = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_")]
    wanted = sys.argv[1:] or names
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        sys.exit(f"no benchmark named {', '.join(unknown)}; there are {', '.join(names)}")
    for name in wanted:
        print(f"\n== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
