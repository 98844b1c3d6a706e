"""Times calls against each other, and tells whether the machine was busy. It lies below the layers, which
measure the candidates of their plans with it."""
