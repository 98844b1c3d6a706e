"""Dense weights under a mask, for methods that choose while training."""
