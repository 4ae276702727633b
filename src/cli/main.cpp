// Entry point: picks the command. (Filled in with the first commands.)
int main() { return 2; }
