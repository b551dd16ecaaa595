"""Two ledgers become groups of launches that correspond, and what each group changed."""
