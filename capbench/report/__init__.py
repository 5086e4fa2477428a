"""Reports: a result as text and as a picture. Everything here is derived from the result document."""
