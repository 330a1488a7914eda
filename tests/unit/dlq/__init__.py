"""Tests of the dead-letter desk."""
