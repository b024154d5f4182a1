"""Tables, figures and terminal output."""
