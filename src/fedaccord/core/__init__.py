"""Contracts and the local loop. Imports torch and nothing of ours."""
