"""Workers of vector environments: one for each environment, behind our pipes, or several environments in each."""
