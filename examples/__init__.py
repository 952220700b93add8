"""Script pairs that show a bug, one folder each: buggy.py fails, reference.py does not, issue.txt says why."""
