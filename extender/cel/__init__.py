"""CEL as Kubernetes speaks it. The language knows nothing of devices; `extender.cel.dra` binds it to them.

An expression takes this way:

1. `parser` turns the source into tokens and these into a syntax tree (`ast`). Macros such as `all` become loops there.
2. `checker` gives every node a type and every call the overloads of the function that may fit (`types`). `library` has
   the functions, a family a file; `messages` has the literals of well-known messages.
3. `compiler` evaluates constants as far as the reference does, and refuses those that cannot work. Then it puts one
   closure together for the whole tree, of those in `closures`. No code is generated. Regular expressions are RE2's.
   The program has the closure, which runs on the inputs. The values are Python's own and those of `values`.
4. `cost` has all prices: the API server's estimate of the worst case, and what the steps above pay, so that no
   expression of a tenant takes long.

The language is our own because no public library is right: cel-python answers 545 of 884 probes as the API server
does (no types of Kubernetes, no compile errors, no cost; docs/decisions/0009-own-cel.md). Results, error texts
and costs here are the reference's, cel-go v0.26 with k8s.io/apiserver, in all recorded cases. It could be a
distribution of its own: of the rest of Berth it imports only the quantities and versions of `extender.api`, which
devices have too, and the root of its errors.

Other packages import from this face, `extender.cel.dra` and `extender.cel.dra.terms` only. docs/cel.md describes the
dialect.
"""

from extender.cel import types
from extender.cel.compiler import Environment, check, cost
from extender.cel.cost import UNBOUNDED, Size
from extender.cel.errors import BudgetExceeded, CelError, CompileError, EvalError, position
from extender.cel.library import kubernetes_library

__all__ = [
    "UNBOUNDED",
    "BudgetExceeded",
    "CelError",
    "CompileError",
    "Environment",
    "EvalError",
    "Size",
    "check",
    "cost",
    "kubernetes_library",
    "position",
    "types",
]
