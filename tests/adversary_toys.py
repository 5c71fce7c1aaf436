"""Toy targets that end in every way in which a case can end."""

import os
import time

import torch
from adversary.cases import BAD, Wrong, bad, check, fine, odd, target
from hypothesis import strategies as st
from torch import nn

import elliptica

AXES = {
    "ending": (
        fine("right", "right"),
        fine("refused", "refused"),
        bad("accepted", "accepted"),
        bad("clear", "clear"),
        odd("wrong", "wrong"),
        odd("deep", "deep"),
        odd("crash", "crash"),
        odd("hang", "hang"),
        fine("broken", lambda case: 1 / 0),
        odd("clash", "clash"),
        bad("excused", "excused"),
        odd("outside", "outside"),
        odd("size", lambda case, n: n, st.integers(0, 1000)),
    ),
    "noise": (fine("none", 0), odd("some", lambda case, text: text, st.text(max_size=20))),
    "other": (fine("a", "a"), odd("b", "b")),
}


def raises(output, target):
    raise ZeroDivisionError("a loss of the user's fails, and the library has no word for it")


@target("toy", AXES, limit=1.0, kind="toy")
def run_toy(case):
    ending = case["ending"]
    x = torch.zeros(4, 2)
    if ending in ("refused", "clear"):
        elliptica.auto_sigma([1.0])
    elif ending == "wrong":
        raise Wrong(f"it is {case['noise']}")
    elif ending == "deep":
        elliptica.elliptic_loss(nn.Linear(2, 1), raises, x, torch.zeros(4, 1), target_space="real")
    elif ending == "crash":
        os.abort()
    elif ending == "hang":
        time.sleep(60)
    elif ending == "clash":
        case.owe(BAD)
    elif ending == "excused":
        case.excuse()
    elif ending == "outside":
        raise ValueError("a fault of the target, not of the product")
    elif isinstance(ending, int):
        check(ending < 100, "too large")
