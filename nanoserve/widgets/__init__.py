"""The instruments of the course. Importing this pulls in no widget library."""
