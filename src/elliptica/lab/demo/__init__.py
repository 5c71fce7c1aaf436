"""The two-moons demo and the paper's figures (paper: section 6.1, Figs. 1 to 4).

``elliptica demo`` trains ERM, mixup and elliptic training over several seeds and checks whether the loss
inside the moons stays within the loss on their boundary. In the order of use: `training`, `study` (all runs),
`results` (summaries), `figures` and `page` (output); `expected_loss` and `uncertainty` make the
figures of the paper that need no moons.
"""
