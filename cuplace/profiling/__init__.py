"""What ran when, and why not earlier: profiles of a program from its submission records."""
