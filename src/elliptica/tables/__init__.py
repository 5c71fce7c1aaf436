"""Compare training methods on your own table under the shift that you expect, and keep the best model.

``elliptica.tables`` is a package; import the function from it: ``from elliptica.tables import compare``.
Names are imported when first used, so that ``elliptica predict`` need not wait for all of them.
"""

import importlib.util
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elliptica._utils.extras import missing_package

for _package in ("polars", "sklearn", "skrub"):
    if importlib.util.find_spec(_package) is None:
        raise missing_package("elliptica.tables", "tables", _package)

if TYPE_CHECKING:
    from elliptica.tables.comparison import Comparison, Options, Verdict, compare
    from elliptica.tables.model import fit_model
    from elliptica.tables.saved import predict_file
    from elliptica.tables.table import TableError

#: Modules of names that are not in `comparison`.
_HOME = {"TableError": "table", "fit_model": "model", "predict_file": "saved"}
__all__ = ["Comparison", "Options", "TableError", "Verdict", "compare", "fit_model", "predict_file"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"elliptica.tables.{_HOME.get(name, 'comparison')}"), name)
