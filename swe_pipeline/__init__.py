"""Issues of repositories: preparing their checkouts, running commands in them, grading answers, many at a time."""
