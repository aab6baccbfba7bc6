"""`python -m cuplace demo`: a pipeline over all devices, its result checked, and a picture of who worked when."""
