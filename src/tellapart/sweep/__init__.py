"""Many trainings: grids and seeds as jobs, their records, what is chosen, measured and written."""
