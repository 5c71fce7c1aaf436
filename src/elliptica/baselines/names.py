"""Names of the baselines in tables of experiments."""

from __future__ import annotations

from elliptica.baselines.dro import DORO, DRO, Focal, Tilted
from elliptica.baselines.erm import ERM
from elliptica.baselines.groups import LISA, DomainMix
from elliptica.baselines.invariance import CORAL, IBIRM, IRM, VREx
from elliptica.baselines.mixup import NFM, ManifoldMixup, Mixup, MixupE, RegMixup

#: Baselines that need nothing but a model, a loss and settings: all that tables need to run them.
BASELINES: dict[str, type[ERM]] = {
    "erm": ERM,
    "mixup": Mixup,
    "mixupe": MixupE,
    "manifold-mixup": ManifoldMixup,
    "nfm": NFM,
    "regmixup": RegMixup,
    "focal": Focal,
    "tilted": Tilted,
    "dro": DRO,
    "doro": DORO,
    "irm": IRM,
    "ib-irm": IBIRM,
    "v-rex": VREx,
    "coral": CORAL,
    "domainmix": DomainMix,
    "lisa": LISA,
}
