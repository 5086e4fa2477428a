"""The engine: many small models trained together, one a lane."""
