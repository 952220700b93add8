"""xlocal finds the function to blame: it compares a failing and a working run and ranks the functions."""
