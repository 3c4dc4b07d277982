"""The SDK inside training processes, and the sender next to them. Standard library only, no other package of ours."""
