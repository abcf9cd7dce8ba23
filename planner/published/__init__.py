"""What others published and predictions rest on or are judged by: acceptance, hidden steps and gains of speculation."""
