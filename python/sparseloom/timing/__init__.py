"""Times calls against each other, and says whether the machine was busy. It imports no layers: they measure
the candidates of their plans with it."""
