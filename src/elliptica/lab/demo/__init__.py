"""The two-moons demo (paper: section 6.1, Figs. 1 and 3): `moons` trains and measures, `pictures` draws."""
