"""A Hopfield memory and a task of personal profiles, as plugins for capbench."""
