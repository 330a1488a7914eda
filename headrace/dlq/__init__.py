"""Dead letters: reading them, telling about them, finding them again and sending them back."""
