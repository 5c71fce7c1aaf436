"""Compare training methods on your own table under the shift that you expect, and keep the best model.

``elliptica.tables`` is a package; import the function from it: ``from elliptica.tables import compare``.
"""

from elliptica._utils.extras import missing_package

try:
    import polars as _polars  # noqa: F401
    import sklearn as _sklearn  # noqa: F401
    import skrub as _skrub  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package("elliptica.tables", "tables", error.name) from error

from elliptica.report.judge import Verdict
from elliptica.tables.comparison import Comparison, Options, compare
from elliptica.tables.model import describe_target_rows, fit_model
from elliptica.tables.predict import predict_file
from elliptica.tables.table import TableError

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
