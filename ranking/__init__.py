"""Comparing two call trees and ranking the functions that may be to blame."""
