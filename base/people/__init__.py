"""What people are told: names that they may have meant, what is missing and how to install it, results as HTML."""
