"""The two-moons demo: ERM, mixup and elliptic training side by side (paper: section 6.1).

``elliptica demo`` trains all of them over several seeds and asks whether the loss inside the moons
stays within the loss on their boundary. The pieces, in the order in which they are used:
`settings`, `training`, `evaluation`, `study` (all runs), `summary` (what was found), `console`,
`figure` and `page` (how it is shown), `command` (all of it).
"""
