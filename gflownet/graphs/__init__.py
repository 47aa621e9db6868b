"""What a state is: computation graphs, canonical form, automorphisms, JSON, drawing."""
