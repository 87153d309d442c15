"""Why a run is red or undecided: rules over what its folder holds, each with its evidence and the option to change."""
