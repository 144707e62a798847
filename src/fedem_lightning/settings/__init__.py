"""What settings may be: types, ranges and names, said once, in the annotations of the constructors that take them."""
