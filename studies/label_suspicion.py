"""Study: neighbours against cleanlab in finding wrong labels, where these are known (the battery).

Needs ``pip install cleanlab``; prints a table and writes results/diagnose/labels.json::

    python studies/label_suspicion.py
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from elliptica.tables.data_findings import label_suspicion
from elliptica.tables.evidence import Evidence
from elliptica.tables.fitted_model import FittedModel

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "tables"))

from battery import CASES, Situation  # noqa: E402

SITUATIONS = ("shuffled digits", "flipped gaussians", "one class mislabelled")
SEEDS = (0, 1, 2)
#: Models whose out-of-fold probabilities cleanlab is given.
MODELS = {
    "logistic regression": lambda: LogisticRegression(max_iter=1000),
    "boosted trees": lambda: HistGradientBoostingClassifier(max_iter=50),
    "ten nearest neighbours": lambda: KNeighborsClassifier(10),
}


def scores(situation: Situation) -> dict[str, float]:
    """Area under the ROC curve of each ranking of the training rows; 1 ranks every wrong label first."""
    from cleanlab.rank import get_label_quality_scores

    assert situation.culprits is not None
    wrong = np.zeros(len(situation.x), dtype=bool)
    wrong[situation.culprits.numpy()] = True
    x, y = situation.x.flatten(1).numpy(), situation.y.numpy()
    fitted = FittedModel(situation.model, situation.loss_fn, situation.x, situation.y)
    rows = fitted.rows(20_000, situation.x.device, torch.Generator())
    evidence = Evidence(fitted, situation.model, rows, 0.95)
    areas = {"elliptica, ten nearest labels": roc_auc_score(wrong, label_suspicion(evidence))}
    for name, make in MODELS.items():
        model = make_pipeline(StandardScaler(), make())
        chances = cross_val_predict(model, x, y, cv=5, method="predict_proba")
        areas[f"cleanlab, {name}"] = roc_auc_score(wrong, -get_label_quality_scores(y, chances))
    return {name: float(value) for name, value in areas.items()}


def main() -> None:
    """Rank the rows of each situation, and print means over the seeds."""
    warnings.simplefilter("ignore")
    cases = {case.name: case for case in CASES}
    records = [
        {"case": name, "seed": seed, **scores(cases[name].build(seed))}
        for name in SITUATIONS
        for seed in SEEDS
    ]
    (ROOT / "results" / "diagnose" / "labels.json").write_text(json.dumps(records, indent=1) + "\n")
    names = [key for key in records[0] if key not in ("case", "seed")]
    print("| ranking | " + " | ".join(SITUATIONS) + " |")
    print("|---|" + "--:|" * len(SITUATIONS))
    for name in names:
        means = [statistics.mean(r[name] for r in records if r["case"] == case) for case in SITUATIONS]
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in means) + " |")


if __name__ == "__main__":
    main()
