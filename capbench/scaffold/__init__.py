"""New plugin projects from templates."""
