"""`sparseloom experiment`: small trainings that show what the methods reach."""
