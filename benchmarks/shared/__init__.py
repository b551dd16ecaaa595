"""What several rooms use: where things lie, commands with a time limit, marked parts of pages, models of usual size."""
