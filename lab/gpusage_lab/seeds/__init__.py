"""The experiments of the papers that gpusage grew from, remade on public measurements; `bench/seed_*.py` run them."""
