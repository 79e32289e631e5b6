"""What two or more methods share, as plain records and functions: nothing here is a method."""
