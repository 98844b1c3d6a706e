"""`sparseloom bench sweep`: random problems that nobody picked, each beside torch's dense product; see
docs/sweep.md."""
