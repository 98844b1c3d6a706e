"""Dense weights under a mask, for methods that choose blocks during training."""
