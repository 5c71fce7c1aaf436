"""Verdicts of a comparison say no more than their intervals."""

import numpy as np
import pytest

from elliptica.compare.metrics import metrics_of
from elliptica.compare.verdict import judge

ACCURACY, WORST = metrics_of("classification", False)[:2]


def scores(accuracy, worst):
    return {"accuracy": accuracy, "worst_class_accuracy": worst}


def around(value, spread=0.002, n=6):
    return [value + spread * (-1) ** i for i in range(n)]


BASE = scores([0.80, 0.82, 0.78, 0.81, 0.79, 0.80], [0.60, 0.62, 0.58, 0.61, 0.59, 0.60])


def plus(average, worst):
    """The base with a gain that varies a little from repeat to repeat."""
    return scores(
        [v + d for v, d in zip(BASE["accuracy"], around(average), strict=True)],
        [v + d for v, d in zip(BASE["worst_class_accuracy"], around(worst), strict=True)],
    )


def judged(**methods):
    return judge({"erm": BASE, **methods}, (ACCURACY, WORST), 0.25)


def test_a_clear_gain_is_recommended():
    verdict = judged(elliptic=plus(0.0, 0.05))
    assert verdict.best == "elliptic"
    assert verdict.text.startswith("Use elliptic training: worst-class accuracy 65.0 % against 60.0 %")
    assert "in accuracy no difference is shown" in verdict.text
    assert [d.result for d in verdict.differences] == ["open", "better"]


def test_no_gain_keeps_ordinary_training():
    verdict = judged(elliptic=plus(0.0005, 0.0), mixup=plus(-0.0005, 0.0005))
    assert verdict.best == "erm"
    assert not verdict.winners
    assert "keep ordinary training" in verdict.text
    assert "are not excluded with 6 repeats" in verdict.text


def test_a_loss_is_said():
    verdict = judged(mixup=plus(-0.05, 0.0))
    assert verdict.best == "erm"
    assert "Worse than ordinary training is mixup: accuracy 75.0 % against 80.0 %" in verdict.text


def test_a_trade_is_not_recommended():
    verdict = judged(elliptic=plus(-0.05, 0.05))
    assert verdict.best == "erm"
    assert "Elliptic training is a trade: worst-class accuracy 65.0 %" in verdict.text


def test_several_winners_are_not_ranked_beyond_the_evidence():
    verdict = judged(elliptic=plus(0.03, 0.02), mixup=plus(0.02, 0.05))
    assert verdict.winners == ["elliptic", "mixup"]
    assert "Also better than ordinary training: mixup; which of them is best is not tested" in verdict.text
    worst = judge(
        {"erm": BASE, "elliptic": plus(0.03, 0.02), "mixup": plus(0.02, 0.05)},
        (ACCURACY, WORST),
        0.25,
        "worst",
    )
    assert worst.best == "mixup"


def test_equal_differences_prove_nothing():
    """One test row more in each of six repeats has no spread at all; that is no proof."""
    shifted = scores([v + 0.01 for v in BASE["accuracy"]], BASE["worst_class_accuracy"])
    assert judged(elliptic=shifted).best == "erm"


def test_few_repeats_give_no_verdict():
    two = {
        name: {key: values[:2] for key, values in each.items()}
        for name, each in {"erm": BASE, "elliptic": plus(0.1, 0.1)}.items()
    }
    verdict = judge(two, (ACCURACY, WORST), 0.25)
    assert verdict.best == "erm"
    assert "No verdict: 2 finished repeats are too few" in verdict.text


def test_wide_intervals_are_called_so():
    noisy = scores([0.9, 0.7, 0.8, 0.95, 0.6, 0.85], [0.9, 0.3, 0.5, 0.9, 0.2, 0.7])
    assert "intervals are wide: more --repeats" in judged(elliptic=noisy).text
    assert "are wide" not in judged(elliptic=plus(0.0001, 0.0001)).text


def test_the_far_end_of_open_intervals_is_not_excluded():
    """An open interval around +3 points reaches further than its half-width."""
    base = scores([0.8] * 5, [0.6] * 5)
    new = scores([0.80, 0.86, 0.80, 0.88, 0.81], [0.6, 0.61, 0.6, 0.59, 0.6])
    verdict = judge({"erm": base, "elliptic": new}, (ACCURACY, WORST), 0.25)
    average, worst = verdict.differences
    assert average.low < 0 < average.mean
    far = [100 * max(-interval.low, interval.high) for interval in (average, worst)]
    assert far[0] > 100 * average.half_width + 2
    assert (
        f"Differences of up to {far[0]:.1f} points of accuracy and {far[1]:.1f} points of worst-class "
        "accuracy are not excluded with 5 repeats."
    ) in verdict.text


def test_decided_intervals_say_nothing_about_what_is_not_excluded():
    """A clear loss on a metric is no open question on it; without any open one there is no such sentence."""
    assert "not excluded" not in judged(elliptic=plus(-0.05, -0.05)).text
    half = judged(elliptic=plus(-0.05, 0.0)).text
    assert "points of worst-class accuracy are not excluded" in half
    assert "points of accuracy" not in half
    other = judged(elliptic=plus(-0.3, 0.0), mixup=plus(0.0, 0.0))
    reach = 100 * other.differences[2].half_width
    assert f"up to {reach:.1f} points of accuracy and" in other.text


def test_more_comparisons_widen_the_intervals():
    one = judged(elliptic=plus(0.0, 0.0))
    two = judged(elliptic=plus(0.0, 0.0), mixup=plus(0.0, 0.0))
    assert one.confidence == pytest.approx(0.975)
    assert two.confidence == pytest.approx(0.9875)
    assert two.differences[0].half_width > one.differences[0].half_width


@pytest.mark.statistical
def test_noise_alone_is_rarely_recommended():
    """Three methods without effect, overlapping repeats: a false recommendation in at most 5 % of tables."""
    draws = np.random.default_rng(3)
    tables, n, rho = 400, 5, 0.2
    wrong = 0
    for _ in range(tables):
        methods = {"erm": scores([0.0] * n, [0.0] * n)}
        for name in ("mixup", "elliptic", "elliptic-weighted"):
            values = draws.normal(size=(2, 1)) * rho**0.5 + draws.normal(size=(2, n)) * (1 - rho) ** 0.5
            methods[name] = scores(*values.tolist())
        wrong += judge(methods, (ACCURACY, WORST), 0.25).best != "erm"
    assert wrong / tables < 0.05 + 5 * (0.05 * 0.95 / tables) ** 0.5


def test_smaller_errors_are_gains():
    rmse, worst = metrics_of("regression", True)
    base = {"rmse": [2.0, 2.1, 1.9, 2.0], "worst_group_rmse": [3.0, 3.1, 2.9, 3.0]}
    new = {"rmse": [1.5, 1.61, 1.4, 1.51], "worst_group_rmse": [3.0, 3.12, 2.88, 3.01]}
    verdict = judge({"erm": base, "c-mixup": new}, (rmse, worst), 0.25)
    assert verdict.best == "c-mixup"
    assert "RMSE 1.505 against 2 (difference -0.495" in verdict.text
    assert judge({"erm": new, "c-mixup": base}, (rmse, worst), 0.25).best == "erm"
