"""Compare training methods on your own table under the shift that you expect, and keep the best model.

``elliptica.tables`` is a package; import the function from it: ``from elliptica.tables import compare``.
Names are imported when first used, so that ``elliptica predict`` need not wait for all of them.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from elliptica._utils.extras import missing_package

for _package in ("polars", "sklearn", "skrub"):
    if importlib.util.find_spec(_package) is None:
        raise missing_package("elliptica.tables", "tables", _package)

if TYPE_CHECKING:
    from elliptica.report.judge import Verdict
    from elliptica.tables.comparison import Comparison, Options, compare
    from elliptica.tables.model import describe_target_rows, fit_model
    from elliptica.tables.predict import predict_file
    from elliptica.tables.table import TableError

_HOME = {
    "Comparison": "tables.comparison",
    "Options": "tables.comparison",
    "TableError": "tables.table",
    "Verdict": "report.judge",
    "compare": "tables.comparison",
    "describe_target_rows": "tables.model",
    "fit_model": "tables.model",
    "predict_file": "tables.predict",
}

__all__ = [
    "Comparison",
    "Options",
    "TableError",
    "Verdict",
    "compare",
    "describe_target_rows",
    "fit_model",
    "predict_file",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"elliptica.{_HOME[name]}"), name)
