"""Measures random problems that nobody picked, each beside torch's dense product (`sparseloom bench sweep`);
see docs/sweep.md."""
