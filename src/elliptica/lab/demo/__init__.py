"""The two-moons demo and the paper's figures (paper: section 6.1, Figs. 1 to 4).

``elliptica demo`` trains ERM, mixup and elliptic training over several seeds and asks whether the loss inside
the moons stays within the loss on their boundary. In the order of use: `training`, `study` (all runs),
`results` (what they say), `figures` and `page` (how it is shown); `expected_loss` and `uncertainty` are the
figures of the paper that need no moons.
"""
