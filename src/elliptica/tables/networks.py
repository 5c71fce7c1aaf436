"""Train networks of all methods and folds side by side, by the rules of `elliptica.tables.protocol`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from elliptica._utils.random import stream_seed
from elliptica.estimators.stacked import Stacked, StackedJob, predict_stacked, train_stacked
from elliptica.tables.methods import JTT, Plan, draw_settings
from elliptica.tables.problem import TableProblem
from elliptica.tables.protocol import (
    FoldRows,
    Predicted,
    Record,
    Report,
    TargetScale,
    Trial,
    best_trials,
    failed_record,
    make_record,
    pool,
    ranking,
    validate,
)

#: Progress after the first short trainings and after all trials, as shares of the work.
_AFTER_FIRST, _AFTER_TRIALS = 0.25, 0.65
#: Memory limit of a stack in bytes, and number of copies of the weights (moments, gradients, best).
_STACK_BYTES, _COPIES = 2**29, 5
_DIVERGED = "the training loss became infinite"


#: A stack, and the number of a network in it.
_Network = tuple[Stacked, int]


class Candidate(NamedTuple):
    """A trial of a method in one of the folds."""

    fold: int  # place in the list of folds
    method: str
    trial: int


class Ensemble(NamedTuple):
    """Predictions of networks trained with the chosen settings."""

    predicted: Predicted  # for the test rows
    validation: np.ndarray  # for the validation rows, by networks that were not trained on them
    length: int  # median number of epochs


class Outcome(NamedTuple):
    """The result of a candidate."""

    trial: Trial
    predicted: np.ndarray  # predictions for the validation rows
    errors: np.ndarray  # whether each training row is misclassified; empty unless JTT needs it


def run_networks(
    problem: TableProblem, folds: Sequence[FoldRows], plan: Plan, report: Report
) -> list[Record]:
    """Train and test all network methods in some of the folds.

    Args:
        problem: The table.
        folds: Rows of these folds.
        plan: Methods and sizes.
        report: Callback that receives the finished share.
    """
    begin = time.perf_counter()
    trainer = _Trainer(problem, folds, plan)
    plain = [method for method in plan.network_methods if method != JTT]
    outcomes = _search(trainer, plain, report)
    if JTT in plan.network_methods:  # JTT learns from the errors of ordinary training in the same fold
        errors = _first_stage(outcomes, problem, plan)
        outcomes |= _search(trainer, [JTT], report, errors)
    chosen = {}
    for fold in range(len(folds)):
        for method in plan.network_methods:
            tried = [outcomes[Candidate(fold, method, trial)].trial for trial in range(plan.trials)]
            if order := best_trials(tried, problem, plan):
                chosen[fold, method] = Candidate(fold, method, order[0])
    tested = trainer.test(list(chosen.values()), outcomes, report)
    seconds = (time.perf_counter() - begin) / max(1, len(folds) * len(plan.network_methods))
    records = []
    for fold, rows in enumerate(folds):
        for method in plan.network_methods:
            tried = [outcomes[Candidate(fold, method, trial)].trial for trial in range(plan.trials)]
            best = chosen.get((fold, method))
            if best is None or best not in tested:
                records.append(failed_record(rows, method, tried, seconds))
                continue
            records.append(
                make_record(
                    problem,
                    rows,
                    method,
                    tried,
                    best.trial,
                    seconds=seconds,
                    **tested[best]._asdict(),
                )
            )
    return records


def _search(
    trainer: _Trainer,
    methods: Sequence[str],
    report: Report,
    errors: Mapping[int, np.ndarray] | None = None,
) -> dict[Candidate, Outcome]:
    """Train all trials; if the plan has first epochs, drop the worse ones after these."""
    plan, problem = trainer.plan, trainer.problem
    every = [
        Candidate(fold, method, trial)
        for fold in range(len(trainer.folds))
        for method in methods
        for trial in range(plan.trials)
    ]
    if plan.survivors == plan.trials:
        return trainer.try_out(every, plan.epochs, (0.0, _AFTER_TRIALS), report, errors)
    outcomes = trainer.try_out(every, plan.first_epochs, (0.0, _AFTER_FIRST), report, errors)
    kept = []
    for fold in range(len(trainer.folds)):
        for method in methods:
            own = [c for c in every if (c.fold, c.method) == (fold, method) and outcomes[c].trial.validation]
            own.sort(key=lambda c: ranking(outcomes[c].trial.validation, problem, plan), reverse=True)
            kept += own[: plan.survivors]
    longer = trainer.try_out(kept, plan.epochs, (_AFTER_FIRST, _AFTER_TRIALS), report, errors)
    for candidate, outcome in outcomes.items():
        if candidate not in longer:
            outcomes[candidate] = outcome._replace(trial=replace(outcome.trial, dropped=True))
        else:
            outcomes[candidate] = longer[candidate]
    return outcomes


def _first_stage(
    found: Mapping[Candidate, Outcome], problem: TableProblem, plan: Plan
) -> dict[int, np.ndarray]:
    """Return the errors of the best trial of ordinary training, by fold."""
    errors = {}
    for fold in {candidate.fold for candidate in found}:
        tried = [found[Candidate(fold, "erm", trial)] for trial in range(plan.trials)]
        order = best_trials([outcome.trial for outcome in tried], problem, plan)
        errors[fold] = tried[order[0] if order else 0].errors
    return errors


def training_groups(problem: TableProblem) -> np.ndarray | None:
    """Return the group number of each row, for methods that use groups; None if there are no groups.

    Rows of groups that are too small to judge count as rows of the largest group. As a group of their own
    they would be sampled as often as all others together.
    """
    if problem.groups is None:
        return None
    names, counts = np.unique(problem.groups[problem.groups != ""], return_counts=True)
    named = np.where(problem.groups == "", names[counts.argmax()], problem.groups)
    return np.unique(named, return_inverse=True)[1]


class _Trainer:
    """Networks that are trained on the tables of some folds.

    If the logarithm of the target is a candidate, every fold has two tables with the same inputs.
    """

    def __init__(self, problem: TableProblem, folds: Sequence[FoldRows], plan: Plan) -> None:
        self.problem, self.folds, self.plan = problem, folds, plan
        self.is_class = problem.task == "classification"
        self.logs = (False, True) if plan.log_target else (False,)
        self.scales = [
            [TargetScale.of(problem.target[rows.train], log=log) for log in self.logs]
            if not self.is_class
            else []
            for rows in folds
        ]
        self.x = [torch.from_numpy(rows.x) for rows in folds for _ in self.logs]
        if self.is_class:
            self.y = [torch.from_numpy(rows.y) for rows in folds]
        else:
            self.y = [
                torch.from_numpy(scale.learn(problem.target)).float() for own in self.scales for scale in own
            ]
        groups = training_groups(problem)
        self.groups = None if groups is None else [torch.from_numpy(groups)] * len(self.x)

    def try_out(
        self,
        wanted: Sequence[Candidate],
        epochs: int,
        shares: tuple[float, float],
        report: Report,
        errors: Mapping[int, np.ndarray] | None,
    ) -> dict[Candidate, Outcome]:
        """Train candidates on the rows of trials, and score them on the validation rows.

        Args:
            wanted: Candidates to train.
            epochs: Maximum number of epochs.
            shares: Share of the whole work that is done before and after.
            report: Callback that receives the finished share.
            errors: Training rows that JTT upweights, by fold.
        """
        if not wanted:
            return {}
        jobs = []
        for candidate in wanted:
            rows = self.folds[candidate.fold]
            wrong = None if errors is None else errors[candidate.fold][rows.fit]
            jobs.append(self._job(candidate, rows.fit, 0, epochs, rows.validation, wrong))
        outcomes = {}
        trained = self._train(jobs, shares, "trials", report)
        for (stack, number), candidate in zip(trained, wanted, strict=True):
            settings = draw_settings(candidate.method, candidate.trial, self.plan)
            log = self.plan.logs_target(candidate.trial)
            rows = self.folds[candidate.fold]
            predicted = self._predict([(stack, number)], candidate, rows.validation, rows.fit).values
            length = stack.best_epoch[number]
            if stack.failed[number] or not length or not np.isfinite(predicted).all():
                trial = Trial(settings, log, length, {}, error=_DIVERGED)
            else:
                trial = Trial(settings, log, length, validate(self.problem, rows, predicted))
            wrong = np.empty(0)
            if candidate.method == "erm" and JTT in self.plan.methods:
                wrong = np.zeros(len(rows.y), dtype=bool)
                own = self._predict([(stack, number)], candidate, rows.train, rows.fit).values
                wrong[rows.train] = own.argmax(1) != rows.y[rows.train]
            outcomes[candidate] = Outcome(trial, predicted, wrong)
        return outcomes

    def test(
        self,
        wanted: Sequence[Candidate],
        found: Mapping[Candidate, Outcome],
        report: Report,
    ) -> dict[Candidate, Ensemble]:
        """Train ensembles with the chosen settings on all training rows, and predict the test rows."""
        if not wanted:
            return {}
        jobs, owners = [], []
        for candidate in wanted:
            rows = self.folds[candidate.fold]
            errors = None
            if candidate.method == JTT:
                errors = _first_stage(found, self.problem, self.plan)[candidate.fold][rows.train]
            length = found[candidate].trial.length if rows.stop is None else self.plan.epochs
            for member in range(1, 1 + self.plan.networks):
                jobs.append(self._job(candidate, rows.train, member, length, rows.stop, errors))
                owners.append(candidate)
        trained = self._train(jobs, (_AFTER_TRIALS, 1.0), "final training", report)
        tested = {}
        for candidate in wanted:
            members = [
                (stack, number)
                for (stack, number), owner in zip(trained, owners, strict=True)
                if owner == candidate and stack.best_epoch[number] and not stack.failed[number]
            ]
            if members:
                rows = self.folds[candidate.fold]
                predicted = self._predict(members, candidate, rows.fold.test, rows.train)
                validation = found[candidate].predicted
                if rows.stop is not None:
                    validation = self._predict(members, candidate, rows.stop, rows.train).values
                length = int(np.median([stack.best_epoch[number] for stack, number in members]))
                tested[candidate] = Ensemble(predicted, validation, length)
        return tested

    def _job(
        self,
        candidate: Candidate,
        rows: np.ndarray,
        member: int,
        epochs: int,
        validation: np.ndarray | None,
        errors: np.ndarray | None,
    ) -> StackedJob:
        """Describe one network; all methods share the seed, the initial weights and the order of rows."""
        fold = self.folds[candidate.fold].fold
        settings = draw_settings(candidate.method, candidate.trial, self.plan)
        method, weight = candidate.method, None
        if method == JTT:
            assert errors is not None
            method, weight = "erm", np.where(errors, settings.pop("upweight"), 1.0)
        seed = stream_seed("training", self.plan.seed, fold.repeat, fold.number, member)
        data = candidate.fold * len(self.logs) + self.plan.logs_target(candidate.trial)
        return StackedJob(rows, data, seed, method, {**settings, "max_iter": epochs}, validation, weight)

    def _train(
        self,
        jobs: Sequence[StackedJob],
        shares: tuple[float, float],
        what: str,
        report: Report,
    ) -> list[_Network]:
        """Train networks in stacks that fit into memory."""
        folds = [rows.fold.number + 1 for rows in self.folds]
        words = f"{what}, fold{'s' if len(folds) > 1 else ''} {', '.join(map(str, folds))}"
        n_outputs = len(self.problem.classes) if self.is_class else 1
        sizes = [max(x.shape[1] for x in self.x), *self.plan.hidden, n_outputs]
        size = max(1, _STACK_BYTES // (_COPIES * 4 * sum(a * b for a, b in pairwise(sizes))))
        begin, end = shares
        networks: list[_Network] = []
        for first in range(0, len(jobs), size):
            part = jobs[first : first + size]

            def callback(share: float, first: int = first, n: int = len(part)) -> None:
                report(begin + (first + share * n) / len(jobs) * (end - begin), words)

            stack = train_stacked(
                self.x,
                self.y,
                part,
                loss="classes" if self.is_class else "real",
                n_outputs=n_outputs,
                hidden=self.plan.hidden,
                batch_size=self.plan.batch_size,
                groups=self.groups,
                patience=self.plan.patience,
                callback=callback,
            )
            networks += [(stack, number) for number in range(len(part))]
        return networks

    def _predict(
        self, members: Sequence[_Network], candidate: Candidate, rows: np.ndarray, known: np.ndarray
    ) -> Predicted:
        """Predict with some networks of one candidate and pool the result.

        Args:
            members: The networks.
            candidate: Candidate that they were trained for.
            rows: Rows to predict.
            known: Rows that they were trained on.
        """
        log = self.plan.logs_target(candidate.trial)
        x = self.x[candidate.fold * len(self.logs) + log][torch.from_numpy(rows)]
        output = torch.cat([predict_stacked(stack, x, [number]) for stack, number in members]).double()
        if self.is_class:
            values = output.softmax(2).numpy()
        else:
            values = self.scales[candidate.fold][log].read(output[..., 0].numpy())
        return pool(values, self.problem.target[known], self.plan)
