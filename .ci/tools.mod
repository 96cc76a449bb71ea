module fleet.example/fleet

go 1.26
