"""Theories on trial: every bound and law against every measured cell, without training."""
